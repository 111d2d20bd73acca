#include "client/coordrun/agent/mpi_rank.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AgentReport Seat(int32_t rank, const std::string& node, const std::string& cpus = "0-3",
                 int32_t cores = 4) {
  AgentReport seat;
  seat.set_number(rank);
  seat.set_node(node);
  seat.set_cpus(cpus);
  seat.set_cores(cores);
  return seat;
}

// Of each seat "place WORKER RANK SIZE LOCAL_RANK LOCAL_SIZE GROUP", and "threads WORKER NUMBER"
// where it has that.
std::string TextOf(const std::vector<AgentReport>& seats) {
  const v1::MpiPlaces places = PlacesOf(seats);
  std::vector<std::string> lines;
  for (const v1::TorchPlaceOrder& place : places.places()) {
    lines.push_back(absl::StrCat("place ", place.worker(), " ", place.rank(), " ", place.size(),
                                 " ", place.local_rank(), " ", place.local_size(), " ",
                                 place.group_rank()));
    for (const v1::MpiPlaces::Threads& threads : places.threads()) {
      if (threads.worker() == place.worker())
        lines.push_back(absl::StrCat("threads ", threads.worker(), " ", threads.threads()));
    }
  }
  return absl::StrJoin(lines, "\n");
}

TEST(PlacesOf, GivesRanksAsCoorddWill) {
  // mpirun has dealt them round the nodes; coordd keeps the ranks of a node together.
  EXPECT_EQ(TextOf({Seat(0, "a"), Seat(1, "b"), Seat(2, "a"), Seat(3, "b")}),
            "place 0 0 4 0 2 0\nthreads 0 2\n"
            "place 1 2 4 0 2 1\nthreads 1 2\n"
            "place 2 1 4 1 2 0\nthreads 2 2\n"
            "place 3 3 4 1 2 1\nthreads 3 2");
}

TEST(PlacesOf, CountsThreadsByTheCoresThatRanksShare) {
  // Bound to cores of their own, as Open MPI does; alone on a node, a rank takes what it likes.
  EXPECT_EQ(TextOf({Seat(0, "a", "0-1", 2), Seat(1, "a", "2-3", 2), Seat(2, "b")}),
            "place 0 0 3 0 2 0\nthreads 0 2\n"
            "place 1 1 3 1 2 0\nthreads 1 2\n"
            "place 2 2 3 0 1 1");
}

TEST(PlacesOf, FollowsTheLabelsOfTheTopology) {
  AgentReport first = Seat(0, "a"), second = Seat(1, "b");
  first.set_labels("rack2");
  second.set_labels("rack1");
  EXPECT_EQ(TextOf({first, second}), "place 0 1 2 0 1 1\nplace 1 0 2 0 1 0");
}

TEST(MpiPlaceOf, ReadsTheVariablesOfEachMpirun) {
  for (const Environment& environment :
       {Environment{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}},
        Environment{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "3"}},
        Environment{{"PALS_RANKID", "1"}, {"PALS_SIZE", "3"}},
        Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}}) {
    const auto place = MpiPlaceOf(environment, {});
    ASSERT_THAT(place, IsOk()) << environment.begin()->first;
    EXPECT_EQ(place->rank, 1);
    EXPECT_EQ(place->size, 3);
  }
  EXPECT_THAT(MpiPlaceOf({{"RANK", "1"}, {"WORLD_SIZE", "3"}}, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("OMPI_COMM_WORLD_RANK"), HasSubstr("--no-torch-env"))));
}

}  // namespace
}  // namespace coordd
