// Package store keeps the platform's state in SQLite: migrations, rows, look-ups and transactions. One file an
// aggregate: row type, columns, insert, update, look-ups, scan; plain functions, the SQL in the function.
//
// It holds no rule of the domain (package platform) and no wire format. Nobody else begins or commits a transaction.
//
// Invariants: one writer, so that "database is locked" never reaches a caller; every look-up takes the account, so a
// foreign row is not found by construction; what changes carries the transaction's revision; a change, its audit row
// and its signals commit together; nothing leaves a transaction before its commit.
package store
