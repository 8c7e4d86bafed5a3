"""What is true about ticks: ranges, knowledge, curiosity, epochs, batches of events and their schemas.

Nothing in here knows of brokers, links or time. Every structure has a dumb twin in
`tests/properties` that holds one dictionary entry per tick and must always agree with it.
"""
