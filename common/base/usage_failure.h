// How our programs answer arguments that they cannot take.
#pragma once

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/nearest_word.h"
#include "common/base/refusal_line.h"

namespace coordd {

// A validator in the place of CLI::PositiveNumber and CLI::NonNegativeNumber, whose sentence has
// the largest of all numbers, in three hundred digits.
inline CLI::Validator NumberThat(bool (*holds)(double), const std::string& expected,
                                 const std::string& type) {
  return CLI::Validator(
      [holds, expected](std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && holds(value);
        return good ? std::string() : "'" + text + "', expected " + expected;
      },
      type);
}
inline CLI::Validator AboveZero() {
  return NumberThat([](double value) { return value > 0; }, "a number above 0", "POSITIVE");
}
inline CLI::Validator ZeroOrMore(const std::string& expected = "a number of 0 or more") {
  return NumberThat([](double value) { return value >= 0; }, expected, "NONNEGATIVE");
}

// In the place of CLI::Range, which says of "3s" that it is not in a range, and takes "nan".
// `of`: what is counted, which the sentence tells: "a number of seconds from 0.001 to 604800".
template <typename Number>
CLI::Validator NumberFrom(Number least, Number most, const std::string& of = "") {
  const bool is_whole = std::is_integral_v<Number>;
  std::ostringstream between;  // as people write them: 604800, not 604800.000000
  between.precision(std::numeric_limits<double>::digits10);
  between << least << " to " << most;
  const std::string expected = std::string(is_whole ? "a whole number " : "a number ") +
                               (of.empty() ? "" : "of " + of + " ") + "from " + between.str();
  return CLI::Validator(
      [=](std::string& text) {
        Number value = {};
        const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return good ? std::string() : "'" + text + "', expected " + expected;
      },
      between.str());
}

// The number of a descriptor that whoever has started this program has opened for it. Where there
// is none, the program's own first file would be called so, and closed.
inline CLI::Validator OpenDescriptor() {
  return CLI::Validator(
      [](std::string& text) {
        int descriptor = -1;
        const bool good = CLI::detail::lexical_cast(text, descriptor) && descriptor > 2 &&
                          fcntl(descriptor, F_GETFD) >= 0;
        return good ? std::string()
                    : "'" + text + "', expected a descriptor that is open, from 3 on";
      },
      "");
}

// The flags, or the commands, that may stand where CLI11 has found something else.
inline std::vector<std::string> KnownArguments(const CLI::App& app, bool flags) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!flags) known.push_back(command->get_name());
    if (!flags || !command->parsed()) continue;
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  if (!flags) return known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  return known;
}

// What other programs call what a flag of ours is for, in the order in which ours are to be tried.
// One that is mistyped is taken for what it is like. Empty: nothing is known, or the program has no
// such flag.
inline std::string FlagMeant(const std::string& word, const std::vector<std::string>& known) {
  static constexpr const char* kMeans[][2] = {
      {"addr", "coordinator"},
      {"addr", "listen"},
      {"address", "coordinator"},
      {"address", "listen"},
      {"server", "coordinator"},
      {"endpoint", "coordinator"},
      {"coordd", "coordinator"},
      {"url", "coordinator"},
      {"host", "coordinator"},
      {"port", "coordinator"},
      {"port", "listen"},
      {"bind", "listen"},
      {"job-name", "job"},
      {"job-id", "job"},
      {"name", "job"},
      {"num-workers", "np"},
      {"workers", "np"},
      {"nproc", "np"},
      {"nprocs", "np"},
      {"ntasks", "np"},
      {"min-workers", "min-np"},
      {"max-workers", "max-np"},
      {"hosts", "hostfile"},
      {"ca", "tls-ca"},
      {"cacert", "tls-ca"},
      {"cert", "tls-cert"},
      {"key", "tls-key"},
      {"state", "store"},
      {"data-dir", "store"},
      {"tail", "follow"},
      {"last", "limit"},
      {"n", "limit"},
      {"watch", "follow"},
      {"rank", "first-rank"},
      {"node-rank", "first-rank"},
      {"world-size", "size"},
      {"num-processes", "np"},
      {"ranks", "np"},
      {"http-port", "http"},
      {"data", "store"},
      {"state-dir", "store"},
      {"log-dir", "output-dir"},
  };
  std::vector<std::string> words;
  for (const auto& [theirs, ours] : kMeans)
    if (std::find(known.begin(), known.end(), ours) != known.end()) words.emplace_back(theirs);
  const bool is_theirs = std::find(words.begin(), words.end(), word) != words.end();
  const std::string own = is_theirs ? "" : NearestWord(word, known);
  if (!own.empty()) return own;
  const std::string meant = is_theirs ? word : NearestWord(word, words);
  for (const auto& [theirs, ours] : kMeans)
    if (meant == theirs && std::find(known.begin(), known.end(), ours) != known.end()) return ours;
  return "";
}

// One sentence for what nobody has asked for: the first flag, since what it seems to take is listed
// with it, else the first word.
inline std::string UnknownArgument(const CLI::App& app) {
  const std::vector<std::string> all = app.remaining(/*recurse=*/true);
  std::string first;
  for (const std::string& one : all) {
    if (one.size() > 1 && one[0] == '-') first = one;
  }
  if (first.empty() && !all.empty()) first = all.front();
  const bool is_flag = first.size() > 1 && first[0] == '-';
  const std::string name = first.substr(0, first.find('='));
  if (is_flag) {
    for (const CLI::App* command : app.get_subcommands()) {
      if (command->get_option_no_throw(name) != nullptr)
        return name + " stands behind the command: " + app.get_name() + " " + command->get_name() +
               " " + name;
    }
  }
  std::string word = is_flag ? name.substr(name.find_first_not_of('-')) : name;
  if (is_flag) std::replace(word.begin(), word.end(), '_', '-');
  const std::vector<std::string> known = KnownArguments(app, is_flag);
  const std::string nearest = is_flag ? FlagMeant(word, known) : NearestWord(word, known);
  std::string text = (is_flag ? "there is no flag " : "unexpected argument ") + name;
  if (!nearest.empty())
    text += std::string(", did you mean ") + (is_flag ? "--" : "") + nearest + "?";
  return text;
}

// "--np: 'x', expected a whole number" for CLI11's "Could not convert: --np = x".
inline std::string WrongValue(const CLI::App& app, const std::string& said) {
  const std::string begin = "Could not convert: ", between = " = ";
  const size_t middle = said.find(between);
  if (said.rfind(begin, 0) != 0 || middle == std::string::npos) return said;
  const std::string flag = said.substr(begin.size(), middle - begin.size());
  const CLI::Option* option = app.get_option_no_throw(flag);
  for (const CLI::App* command : app.get_subcommands())
    if (option == nullptr) option = command->get_option_no_throw(flag);
  std::string type = option == nullptr ? "" : option->get_type_name();
  type = type.substr(0, type.find(':'));  // behind it stands what its validator takes
  const std::string value = said.substr(middle + between.size());
  std::string expected = "a value of another type";
  if (type.rfind("INT", 0) == 0 || type == "N") expected = "a whole number";
  if (type == "SECONDS") expected = "a number of seconds";
  if (type.rfind("UINT", 0) == 0) expected = "a whole number of 0 or more";
  if (type.rfind("FLOAT", 0) == 0) expected = "a number";
  const size_t sign = value.rfind('-', 0) == 0 ? 1 : 0;
  const bool is_number = value.find_first_not_of("0123456789", sign) == std::string::npos;
  if (is_number && expected == "a whole number") expected += ", nearer to 0";
  return flag + ": '" + value + "', expected " + expected;
}

// What is wrong, in one sentence: "there is no flag --lisen, did you mean --listen?".
inline std::string UsageSentence(const CLI::App& app, const CLI::Error& error) {
  const std::vector<std::string> unknown = app.remaining();
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    return UnknownArgument(app);
  if (error.get_name() == "ConversionError") return WrongValue(app, error.what());
  if (error.get_name() != "RequiredError") return error.what();
  if (commands.empty() || !app.get_subcommands().empty())
    return unknown.empty() ? error.what() : UnknownArgument(app);
  std::string text = "expected a command:";
  if (!unknown.empty()) {
    const std::string nearest = NearestWord(unknown[0], KnownArguments(app, /*flags=*/false));
    text = "'" + unknown[0] + "' is neither an option nor a command of it, ";
    text += nearest.empty() ? "expected" : "did you mean " + nearest + "? There are";
  }
  for (const CLI::App* command : commands)
    text += (command == commands[0] ? " " : ", ") + command->get_name();
  return text;
}

// What CLI::App::failure_message prints: "coordctl: 'stat' is neither an option nor a command of
// it, expected status, jobs".
inline std::string UsageFailure(const CLI::App* app, const CLI::Error& error) {
  const std::string& name = app->get_name();
  return RefusalLine(name, UsageSentence(*app, error)) + "(" + name + " --help says more)\n";
}

}  // namespace coordd
