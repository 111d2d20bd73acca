// How our programs answer arguments that they cannot take.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

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
inline CLI::Validator ZeroOrMore() {
  return NumberThat([](double value) { return value >= 0; }, "a number of 0 or more",
                    "NONNEGATIVE");
}

// What CLI::App::failure_message prints: "coordctl: 'stat' is neither an option nor a command of
// it, expected status, jobs".
inline std::string UsageFailure(const CLI::App* app, const CLI::Error& error) {
  std::string text = error.what();
  const std::vector<std::string> unknown = app->remaining();
  const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
  if (error.get_name() == "RequiredError" && !commands.empty() && app->get_subcommands().empty()) {
    text = unknown.empty()
               ? "expected a command:"
               : "'" + unknown[0] + "' is neither an option nor a command of it, expected";
    for (const CLI::App* command : commands) {
      text += (command == commands[0] ? " " : ", ") + command->get_name();
    }
  }
  return app->get_name() + ": " + text + "\n(" + app->get_name() + " --help says more)\n";
}

}  // namespace coordd
