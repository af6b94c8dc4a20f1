"""What is known of devices: read in processes of their own, since a call into a sick driver may never come back."""
