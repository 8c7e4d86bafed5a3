"""Which subscriptions make others superfluous? Covering of two conditions, and the maximal ones of many."""
