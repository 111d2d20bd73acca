// The environment variables of coordd's programs and of its Python package, as one table. PURE.
//
// docs/reference/environment.md is made of it (coordd-worker --list-environment), and
// `coordd-worker
// --help` takes its sentences from it. tests/tools/variables_test.py finds a variable that a source
// reads, or that a document names, and that the table lacks.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coordd {

struct VariableRow {
  absl::string_view name;     // "COORDD_ADDR"
  absl::string_view group;    // the heading under which the page has it
  absl::string_view summary;  // a phrase without a full stop; `--help` prints it
  absl::string_view values;   // what may be given, with its unit
  // What holds without the variable. Between backquotes: a value that means the same.
  absl::string_view default_value;
  absl::string_view readers;  // "workers, coordctl": whose sources name the variable
  absl::string_view more;     // further sentences for the page, or nothing
};

// All variables; those of one group stand together.
absl::Span<const VariableRow> VariableTable();

// REQUIRES: the table has a variable of this name.
const VariableRow& VariableNamed(absl::string_view name);

// The whole text of docs/reference/environment.md.
std::string EnvironmentPage();

}  // namespace coordd
