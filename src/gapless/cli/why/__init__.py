"""`gapless why`: the story of one event and one subscriber."""
