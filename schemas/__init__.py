"""What crosses a boundary: the job spec, events, records, recorded logs.

The lowest room of the house. Everything else imports it (`jobs | replay -> operators ->
schemas`), and it imports nothing of the project.
"""
