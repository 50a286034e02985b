"""Frameworks that use the library: one module each. Nothing else imports them."""
