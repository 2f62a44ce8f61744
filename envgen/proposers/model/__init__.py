"""The proposer that asks a language model, and believes nothing it says before it was tried (METHOD.md §1).

prompts/*.md   what is asked, as data; their hashes ride in the bundle's manifest
answers        what may come back, as strict schemas
asking         one question with its repairs
structure      stage 1: the state structure
statements     stage 2: what a tool does, in the planner's terms
code           stage 2: the Python of a tool
trials         stage 2: the Python against the statement, by execution
prose          stage 0: tools out of prose
propose        the stages in order; a draft comes out
"""

from envgen.proposers.model.propose import ModelDraft, propose_with_model

__all__ = ["ModelDraft", "propose_with_model"]
