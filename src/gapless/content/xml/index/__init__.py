"""Which of many tree patterns does a document match? One walk for all of them, over shared steps."""
