"""The page and the HTTP API of ``ciuic web``: on loopback, on a UNIX socket, or with TLS elsewhere.

server     listens and serves            app        puts the parts below together
admission  which requests are answered   answers    queries, documents, errors
pages      HTML                          shown      text for people
api        the HTTP API                  models     its documents
openapi    its description               ranges     parts of a file
reading    reads the store for a request snapshots  the list of snapshots, kept
history    timelines and comparisons     jobs       what it runs, each in a process
"""
