// Package rest is the REST face of the platform: every verb as POST /api/v1/verbs/VERB, the two paths of the seed
// documents, people's surface (operations and policies), and the OpenAPI document that describes all of it.
//
// It holds no rule of a verb: bodies go to the one call path as they came, and what people decide is signed by their
// human key and verified in package tools. It opens no listener and knows no secret: cmd binds it, and says who a
// request's credential belongs to.
//
// Invariants: every answer is one JSON envelope; nothing but the OpenAPI document is answered without a credential;
// an assistant's credential reaches no person's surface; a key that nothing declares is refused, in a body and in a query.
package rest
