"""The scheduler's side: hooks become events of the ledger and the book of incidents, their answers messages."""
