"""The jobs of the server, each in a process of its own.

jobs      starts jobs and remembers them
commands  the command that does the same as a job
work      the process of a restore or a verification
"""
