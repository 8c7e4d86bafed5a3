"""The SQL of views: from text to a relation, and back."""
