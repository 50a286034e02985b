"""Services of the operating system."""
