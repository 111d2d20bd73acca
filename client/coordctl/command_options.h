// Options of coordctl's subcommands that take no other's.
#pragma once

#include <CLI/CLI.hpp>

#include "client/coordctl/certs_command.h"
#include "client/coordctl/exit_report.h"

namespace coordd {

CLI::App* AddCertsCommand(CLI::App& app, CertsArguments* arguments);
CLI::App* AddEndedCommand(CLI::App& app, ExitArguments* arguments);

}  // namespace coordd
