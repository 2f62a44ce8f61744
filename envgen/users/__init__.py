"""Simulated users and the judge of users (METHOD.md §4, DESIGN.md §8).

envgen.users.port       User, UserReply, UserError; UserVerdict and the hook that gives one
envgen.users.scripted   no model
envgen.users.model      any OpenAI-compatible server, its words checked against the facts
envgen.users.faults     wraps either and makes one mistake on purpose, with ground truth
envgen.users.speech     how values are said
envgen.users.rules      the judge's rules; envgen.users.judge: rules and model together
envgen.users.measure    the judge's precision and recall on injected faults
"""
