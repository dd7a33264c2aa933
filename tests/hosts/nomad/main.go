// Prints a Nomad job file as JSON. Each block and attribute is checked against the types of Nomad's API first, since Nomad
// itself decodes a job file into these.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// file is what a job file contains.
type file struct {
	Job *job `hcl:"job,block"`
}

// job has a label, which the API's type has not.
type job struct {
	Label string `hcl:",label"`
	api.Job
}

func main() {
	parser := hclparse.NewParser()
	parsed, diags := parser.ParseHCLFile(os.Args[1])
	var tree map[string]any
	if !diags.HasErrors() {
		tree, diags = decode(parsed.Body, reflect.TypeFor[file]())
	}
	if diags.HasErrors() {
		hcl.NewDiagnosticTextWriter(os.Stderr, parser.Files(), 120, false).WriteDiagnostics(diags)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(tree["job"]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// field is a field of a struct, as its tag `hcl:"name,kind"` says.
type field struct {
	name, kind string
	typ        reflect.Type
}

func fields(t reflect.Type) (all []field) {
	for _, f := range reflect.VisibleFields(t) {
		if tag, tagged := f.Tag.Lookup("hcl"); tagged {
			name, kind, _ := strings.Cut(tag, ",")
			all = append(all, field{name, kind, f.Type})
		}
	}
	return all
}

// element is the type of a value, or of each value of a list.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map && element(t.Elem()).Kind() == reflect.Struct {
		t = t.Elem()
	}
	return t
}

// decode checks a block's body against a struct.
func decode(body hcl.Body, t reflect.Type) (map[string]any, hcl.Diagnostics) {
	schema, types := &hcl.BodySchema{}, map[string]reflect.Type{}
	for _, f := range fields(t) {
		types[f.name] = f.typ
		switch f.kind {
		case "block":
			header := hcl.BlockHeaderSchema{Type: f.name}
			if inner := element(f.typ); inner.Kind() == reflect.Struct {
				for _, f := range fields(inner) {
					if f.kind == "label" {
						header.LabelNames = append(header.LabelNames, "name")
					}
				}
			}
			schema.Blocks = append(schema.Blocks, header)
		case "", "optional":
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: f.name, Required: f.kind == ""})
		}
	}
	content, diags := body.Content(schema)
	tree := map[string]any{}
	for name, attribute := range content.Attributes {
		value, more := evaluate(attribute, types[name])
		tree[name], diags = value, append(diags, more...)
	}
	for _, block := range content.Blocks {
		inner, more := decodeBlock(block, element(types[block.Type]))
		if len(block.Labels) > 0 {
			inner["label"] = block.Labels[0]
		}
		diags = append(diags, more...)
		if types[block.Type].Kind() == reflect.Slice {
			list, _ := tree[block.Type].([]any)
			tree[block.Type] = append(list, inner)
		} else {
			tree[block.Type] = inner
		}
	}
	return tree, diags
}

func decodeBlock(block *hcl.Block, t reflect.Type) (map[string]any, hcl.Diagnostics) {
	if t.Kind() == reflect.Struct {
		return decode(block.Body, t)
	}
	// A map of names that are not Nomad's, such as those of a task's variables.
	attributes, diags := block.Body.JustAttributes()
	tree := map[string]any{}
	for name, attribute := range attributes {
		value, more := evaluate(attribute, t.Elem())
		tree[name], diags = value, append(diags, more...)
	}
	return tree, diags
}

// evaluate returns an attribute's value. Variables of the running task, such as ${NOMAD_TASK_DIR}, stay as they are.
func evaluate(attribute *hcl.Attribute, t reflect.Type) (any, hcl.Diagnostics) {
	context := &hcl.EvalContext{Variables: map[string]cty.Value{}}
	for _, variable := range attribute.Expr.Variables() {
		context.Variables[variable.RootName()] = cty.StringVal("${" + variable.RootName() + "}")
	}
	value, diags := attribute.Expr.Value(context)
	if diags.HasErrors() {
		return nil, diags
	}
	if err := check(&value, element(t), t); err != nil {
		place := attribute.Expr.Range()
		return nil, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Wrong value", Detail: err.Error(), Subject: &place}}
	}
	return ctyjson.SimpleJSONValue{Value: value}, nil
}

// check converts a value to the type of its field. Durations are written as text.
func check(value *cty.Value, element, t reflect.Type) (err error) {
	switch {
	case element == reflect.TypeFor[time.Duration]():
		var text cty.Value
		if text, err = convert.Convert(*value, cty.String); err == nil {
			_, err = time.ParseDuration(text.AsString())
		}
	case element.Kind() != reflect.Interface:
		var wanted cty.Type
		if wanted, err = gocty.ImpliedType(reflect.Zero(t).Interface()); err == nil {
			*value, err = convert.Convert(*value, wanted)
		}
	}
	return err
}
