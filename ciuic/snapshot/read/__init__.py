"""Reading changed files, cutting them into chunks and handing these to the store."""
