"""Isolated worker processes for tool code that is not vetted: ``pool`` and ``episode`` are the parent's side,
``worker`` and ``confine`` the child's, ``vetting`` decides who needs them."""
