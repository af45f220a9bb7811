"""The server and its page: answers with P(wrong) and a decision, over HTTP and MCP."""
