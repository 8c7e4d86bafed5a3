"""`gapless sim`: simulate networks under faults, and report what was found."""
