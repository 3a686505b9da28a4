// Package flows plays the assistant in the flows that a person chats about: set up two clusters, add a worker, find out
// why a join failed, remove a cluster. For each it takes the prompt that the control plane offers and makes the calls
// that the prompt asks for, on real machines.
//
// It is no model: the calls are written down. What ties them to the prompts is that each call's verb is named in the
// prompt that is played, and that the texts are held to what they must say.
//
// Invariants: the session is the one that an assistant gets without any flag; a flow ends in the state that it was for.
package flows
