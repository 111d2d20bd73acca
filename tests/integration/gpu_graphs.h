// Scenarios of gpu_ranks whose collectives are captured into CUDA graphs.
#pragma once

#include "tests/integration/gpu_rank.h"

namespace coordd {

// What is refused; then every collective that can be captured, launched so many times with other
// inputs, and checked, with other collectives between launches.
void Graphs(RankOnDevice& r, int launches);
// Launches until one of the others is lost; at step `dies_at` this rank kills itself. Nothing but
// sums of all ranks is ever read. With COORDD_ON_FAILURE=raise the next generation captures again,
// and a launch of the old graph leaves no number.
void TrainWithGraphs(RankOnDevice& r, int dies_at);
// One launch, or one collective that is not captured, of which one rank is lost; whoever is left
// waits for its device and calls nothing of the library.
void StuckBehindTheDevice(RankOnDevice& r, bool in_a_graph, bool dies);
// Rank 1 captures something else than the others; says what the check of it says.
void CaptureWhatDiffers(RankOnDevice& r);

}  // namespace coordd
