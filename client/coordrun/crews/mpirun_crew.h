// Workers under an MPI library's mpirun: one process here, of which only its own end is known. (io)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/coordrun/crews/crew.h"
#include "client/coordrun/plan/commands.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/process/child_process.h"
#include "client/coordrun/process/line_splitter.h"
#include "common/base/environment.h"

namespace coordd {

// The rank and the text of a line that mpirun has labelled: "[1,3]<stdout>:text" (Open MPI), "[3]
// text" (Hydra). Nothing: it has no label. Values in, values out.
struct LabelledLine {
  int32_t rank = 0;
  std::optional<Stream> stream;  // when the label tells
  absl::string_view text;
};
std::optional<LabelledLine> ParseLabel(absl::string_view line);
// All of a line's: Open MPI labels what it has read at a time, so that in a line whose parts were
// written one after the other each has a label, and those of other ranks may stand in between. Only
// the last one ends its rank's line. Labels of ranks from `world_size` on are text. Empty: the line
// begins with no label.
std::vector<LabelledLine> ParseLabels(absl::string_view line, int32_t world_size);

class MpirunCrew : public Crew {
 public:
  // `rank_command`: MpiRankCommand. `variables`: of the workers; an empty value means that they
  // must not have it.
  MpirunCrew(const RunOptions& options, const RunPlan& plan, std::vector<std::string> rank_command,
             Environment environment, Environment variables);

  absl::Status Start(CrewEvents& events) override;
  void Await(std::vector<pollfd>& fds) override;
  void Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) override;
  void Signal(int signal, absl::Time now) override;
  bool drained() const override;
  void KillAll() override;

 private:
  void TakeLine(Stream stream, absl::string_view line, CrewEvents& events) const;

  // Constant after construction.
  const RunOptions& options_;
  const RunPlan& plan_;
  const std::vector<std::string> rank_command_;
  Environment environment_;
  std::vector<std::string> names_;

  std::optional<ChildProcess> process_;
  LineSplitter out_lines_, err_lines_;
};

}  // namespace coordd
