"""Can the simulator fail? Deliberately broken machines, each of which must be caught.

A mutant replaces one method of one machine, or one function of a module, by a subtly wrong one. The
simulator runs seeds until a checker objects; the mutant counts as caught only if it was a checker that
is meant to notice this kind of fault, for a bug that is found by accident is found late, and only by a seed
on which the machines as they are keep every promise.
"""
