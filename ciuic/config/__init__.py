"""The configuration file: flat ``key = value`` lines, and sections -> checked settings.

etc/ciuic.conf is the reference of all keys. A file is read and checked as a whole before anything
uses it. A mistake is a ``ConfigError`` that starts with ``FILE:LINE:``.

settings       every key, its default, and ``Settings``
trusted_file   reading a file that no other user can change
lines          lines -> the text of each key and section
values         text -> checked values
load           all of it

Every command checks the whole file, even if it needs only the store's directory: a mistake shows at
the next command, not at the hour of the next snapshot. So this package imports only what ``ciuic
list`` needs anyway; importing pydantic would take longer than the rest of the command.
``read_store_path`` is for callers that continue although other values are wrong. A command that
``--store`` gives its store imports ``settings`` alone.
"""
