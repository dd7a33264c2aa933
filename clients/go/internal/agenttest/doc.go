// Package agenttest tests the client against a real agent, whose binary $SLOTKEEPER_BIN names. Each request and each answer is
// checked against the agent's own OpenAPI document. This is a module of its own, so that programs do not get its dependencies.
package agenttest
