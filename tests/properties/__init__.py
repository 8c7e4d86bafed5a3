"""Every clever structure against its dumb twin, which holds one dictionary entry per tick."""
