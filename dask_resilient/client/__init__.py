"""What a client calls: install, connect, the handle; and reports as functions of rows."""
