"""Where the files of runs lie: `STORAGES["default"]`, chosen by `storage.backend`.

A directory, the database or S3. All keep the same promises: a file is there whole or not at all,
a name that is taken stays as it is, a file is read in pieces from any place, and none has an
address that a browser could open.
"""
