package approval_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"powernode/internal/humankey"
	"powernode/platform/governance"
	"powernode/store"
	"powernode/tools"
)

// attacker is the name under which this program plays the assistant.
const attacker = "attacker"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != attacker {
		os.Exit(m.Run())
	}
	if err := attack(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// attack does one deed on a state directory, as the user that it belongs to, and prints what came of it.
func attack(deed, dir string, args []string) error {
	a := &assistant{dir: dir, store: filepath.Join(dir, "store.db")}
	var err error
	if a.key, err = a.ownKey(); err != nil {
		return err
	}
	switch deed {
	case "sql":
		return a.sql(args...)
	case "query":
		return a.query(args[0])
	case "audit":
		return a.audit(args[0])
	case "own-key-row":
		return a.keyRow(args[0])
	case "own-policy-row":
		return a.policyRow(args[0], args[1])
	case "own-public-key":
		return a.sql("UPDATE users SET public_key = x'" + hex.EncodeToString(a.public()) + "'")
	case "rewrite":
		return a.rewrite()
	case "key-file":
		return humankey.Write(filepath.Join(dir, args[0]), args[1], a.key, []byte(args[2]))
	case "doctored-key-file":
		return a.doctoredKeyFile(args[0], args[1])
	case "root-mark":
		return os.WriteFile(filepath.Join(dir, governance.RootMark), []byte(args[0]), 0o600)
	case "decide":
		return a.decide(args[0], true)
	case "decide-unsigned":
		return a.decide(args[0], false)
	case "post":
		return a.post(args[0], json.RawMessage(args[1]))
	case "record-key":
		return a.recordKey(args[0])
	case "set-policy":
		return a.setPolicy(args[0], args[1])
	case "swap":
		return a.swap(args[0], args[1])
	}
	return fmt.Errorf("no such deed: %s", deed)
}

// assistant has the user's rights and a key that nobody recorded.
type assistant struct {
	dir, store string
	key        ed25519.PrivateKey
}

func (a *assistant) public() ed25519.PublicKey { return a.key.Public().(ed25519.PublicKey) }

// ownKey is the same in every deed on a state directory.
func (a *assistant) ownKey() (ed25519.PrivateKey, error) {
	seed := sha256.Sum256([]byte("the assistant's own key for " + a.dir))
	return ed25519.NewKeyFromSeed(seed[:]), nil
}

func (a *assistant) sql(statements ...string) error {
	db, err := sql.Open("sqlite3", "file:"+a.store+"?_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer db.Close()
	for _, s := range statements {
		done, err := db.Exec(s)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return fmt.Errorf("%s: no row was written (%w)", s, err)
		}
	}
	return nil
}

// query prints the one value that it finds.
func (a *assistant) query(statement string) error {
	db, err := sql.Open("sqlite3", "file:"+a.store+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer db.Close()
	var found string
	if err := db.QueryRow(statement).Scan(&found); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	fmt.Println(found)
	return nil
}

// update writes the store as the control plane does, hash chain and all.
func (a *assistant) update(do func(ctx context.Context, tx *store.Tx, acct store.AccountID) error) error {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{Path: a.store})
	if err != nil {
		return err
	}
	return errors.Join(db.Update(ctx, func(tx *store.Tx) error {
		accounts, err := store.Accounts(ctx, &tx.View)
		if err != nil {
			return err
		}
		people, err := store.Users(ctx, &tx.View, accounts[0].ID)
		if err != nil {
			return err
		}
		tx.Act(store.Actor{Kind: governance.KindPerson, ID: string(people[0].ID), CorrelationID: tx.NewID()})
		return do(ctx, tx, accounts[0].ID)
	}), db.Close())
}

// audit appends a row to the chain and prints its id.
func (a *assistant) audit(entry string) error {
	return a.update(func(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
		var e store.AuditEntry
		if err := json.Unmarshal([]byte(entry), &e); err != nil {
			return err
		}
		e.AccountID = acct
		id, err := tx.Audit(ctx, e)
		fmt.Println(id)
		return err
	})
}

// keyRow appends the record of the assistant's own key, for the person who is there, and prints the row's id.
func (a *assistant) keyRow(authorisedBy string) error {
	return a.update(func(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
		people, err := store.Users(ctx, &tx.View, acct)
		if err != nil {
			return err
		}
		u := people[0]
		signed := governance.Sign(a.key, governance.KeyStatement{AccountID: acct, Email: u.Email, PublicKey: a.public()}.Bytes())
		id, err := tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "human_key_created", ResourceType: "Governance::User",
			ResourceID: string(u.ID), New: store.Object{"email": u.Email, "public_key": []byte(a.public()), "proof": signed,
				"authorised_by": authorisedBy, "authority": signed}})
		fmt.Println(id)
		return err
	})
}

// policyRow writes a policy with its record, signed with the assistant's own key, and prints the record's id.
func (a *assistant) policyRow(category, verdict string) error {
	return a.update(func(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
		people, err := store.Users(ctx, &tx.View, acct)
		if err != nil {
			return err
		}
		p := governance.PolicyStatement{AccountID: acct, PolicyID: store.PolicyID(tx.NewID()), ActionCategory: category,
			Verdict: verdict, UserID: people[0].ID}
		signed := governance.Sign(a.key, p.Bytes())
		err = store.PutPolicy(ctx, tx, store.Policy{ID: p.PolicyID, AccountID: acct, ActionCategory: category, Verdict: verdict,
			Scope: "{}", MadeBy: p.UserID, Signature: signed})
		if err != nil {
			return err
		}
		id, err := tx.Audit(ctx, store.AuditEntry{AccountID: acct, Action: "created", ResourceType: "Governance::Policy",
			ResourceID: string(p.PolicyID), New: store.Object{"policy": p, "signature": signed}})
		fmt.Println(id)
		return err
	})
}

// rewrite puts the assistant's own key into the person's record and hashes the chain anew from there on; it prints the
// record's id.
func (a *assistant) rewrite() error {
	db, err := sql.Open("sqlite3", "file:"+a.store+"?_busy_timeout=10000&_txlock=immediate")
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	if err := a.rehash(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (a *assistant) rehash(tx *sql.Tx) error {
	var rows []*chained
	found, err := tx.Query(`SELECT sequence, id, coalesce(account_id, ''), action, resource_type, resource_id, actor, verb, old_values,
		new_values, coalesce(operation_id, ''), correlation_id, created_at, previous_hash FROM audit ORDER BY sequence`)
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		c := &chained{}
		if err := found.Scan(&c.Sequence, &c.ID, &c.AccountID, &c.Action, &c.ResourceType, &c.ResourceID, &c.Actor, &c.Verb, &c.Old,
			&c.New, &c.OperationID, &c.CorrelationID, &c.Created, &c.PreviousHash); err != nil {
			return err
		}
		rows = append(rows, c)
	}
	if err := errors.Join(found.Err(), found.Close()); err != nil {
		return err
	}
	previous := ""
	for _, c := range rows {
		if c.Action == "human_key_created" {
			fmt.Println(c.ID)
			if err := a.claim(c); err != nil {
				return err
			}
		}
		c.PreviousHash = previous
		previous = c.hash()
		if _, err := tx.Exec(`UPDATE audit SET new_values = ?, previous_hash = ?, hash = ? WHERE id = ?`, c.New, c.PreviousHash, previous, c.ID); err != nil {
			return err
		}
	}
	_, err = tx.Exec(`UPDATE users SET public_key = ?`, []byte(a.public()))
	return err
}

// claim makes a key's record one of the assistant's key.
func (a *assistant) claim(c *chained) error {
	var values map[string]any
	if err := json.Unmarshal([]byte(c.New), &values); err != nil {
		return err
	}
	email, _ := values["email"].(string)
	statement := governance.KeyStatement{AccountID: store.AccountID(c.AccountID), Email: email, PublicKey: a.public()}.Bytes()
	values["public_key"], values["proof"] = []byte(a.public()), governance.Sign(a.key, statement)
	raw, err := json.Marshal(values)
	c.New = string(raw)
	return err
}

// chained is an audit row as its hash covers it.
type chained struct {
	Sequence                                      int64
	PreviousHash, ID, AccountID, Action           string
	ResourceType, ResourceID, Actor, Verb         string
	Old, New, OperationID, CorrelationID, Created string
}

func (c chained) hash() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// doctoredKeyFile writes a file with the person's public key over the assistant's private one.
func (a *assistant) doctoredKeyFile(email, passphrase string) error {
	path := filepath.Join(a.dir, "human.key")
	public, err := humankey.Public(path)
	if err != nil {
		return err
	}
	if err := humankey.Write(path, email, a.key, []byte(passphrase)); err != nil {
		return err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var file map[string]any
	if err := json.Unmarshal(raw, &file); err != nil {
		return err
	}
	file["public_key"] = []byte(public)
	if raw, err = json.Marshal(file); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

// post speaks to the socket and prints status and answer.
func (a *assistant) post(path string, body any) error {
	status, answer, err := a.ask(path, body)
	if err == nil {
		fmt.Printf("%d %s\n", status, answer)
	}
	return err
}

func (a *assistant) ask(path string, body any) (int, []byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(a.dir, "control.sock"))
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	answer, err := client.Post("http://powernode"+path, "application/json", bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

func (a *assistant) people(request string, in, out any) error {
	status, raw, err := a.ask("/v1/people/"+request, in)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s: %d %s", request, status, raw)
	}
	return json.Unmarshal(raw, out)
}

// decide sends an approval, signed with the assistant's own key or not at all.
func (a *assistant) decide(operation string, signed bool) error {
	var shown tools.OperationAnswer
	if err := a.people(tools.PeopleOperation, tools.OperationRequest{ID: operation}, &shown); err != nil {
		return err
	}
	d := governance.Decision{OperationID: store.OperationID(operation), PlanDigest: shown.Operation.PlanDigest, Decision: governance.Approve}
	if signed {
		if shown.Statement == nil {
			return errors.New("nothing is shown to sign: no key counts")
		}
		shown.Statement.Decision = governance.Approve
		d.Signature = governance.Sign(a.key, shown.Statement.Bytes())
	}
	return a.post("/v1/people/"+tools.PeopleDecide, d)
}

// recordKey asks for the assistant's own key to be recorded, with an authority of its own.
func (a *assistant) recordKey(email string) error {
	var state tools.KeyState
	if err := a.people(tools.PeopleKey, nil, &state); err != nil {
		return err
	}
	in := governance.KeyInput{Email: email, Name: "Assistant", PublicKey: a.public()}
	in.Proof = governance.Sign(a.key, governance.KeyStatement{AccountID: state.AccountID, Email: email, PublicKey: a.public()}.Bytes())
	in.Authority = in.Proof
	return a.post("/v1/people/"+tools.PeopleRecordKey, in)
}

func (a *assistant) setPolicy(category, verdict string) error {
	var p governance.PolicyStatement
	if err := a.people(tools.PeoplePreparePolicy, tools.PreparePolicyRequest{ActionCategory: category, Verdict: verdict}, &p); err != nil {
		return err
	}
	return a.post("/v1/people/"+tools.PeopleSetPolicy, governance.PolicyInput{Policy: p, Signature: governance.Sign(a.key, p.Bytes())})
}

// swap prints the statement that puts one operation's call behind what is shown of another.
func (a *assistant) swap(shown, meant string) error {
	key, err := os.ReadFile(filepath.Join(a.dir, "seal.key"))
	if err != nil {
		return err
	}
	sealer, err := store.NewSealer(key)
	if err != nil {
		return err
	}
	return a.update(func(ctx context.Context, tx *store.Tx, acct store.AccountID) error {
		other, err := store.OperationByID(ctx, &tx.View, acct, store.OperationID(meant))
		if err != nil {
			return err
		}
		arguments, err := sealer.Open("operations.arguments:"+meant, other.Arguments)
		if err != nil {
			return err
		}
		sealed, err := sealer.Seal(tx, "operations.arguments:"+shown, arguments)
		if err != nil {
			return err
		}
		fmt.Printf("UPDATE operations SET arguments = x'%x', arguments_hash = '%s', plan_digest = '%s' WHERE id = '%s'\n", sealed,
			other.ArgumentsHash, other.PlanDigest, shown)
		return nil
	})
}
