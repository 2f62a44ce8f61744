"""Language models behind one port: a client for OpenAI-compatible servers and doubles for tests.

envgen.llm.port                ChatRequest -> ChatReply, the ChatClient protocol
envgen.llm.openai_compatible   any server that speaks /v1/chat/completions (SGLang, vLLM, …)
envgen.llm.backoff             how long to wait before the next try
envgen.llm.doubles             scripted replies; recording to and replaying from a file
"""
