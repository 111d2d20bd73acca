// What a network costs: Hockney's start-up and bandwidth of each link, and LogGP's gap between two
// messages (Alexandrov, Ionescu, Schauser and Scheiman, "LogGP", SPAA 1995). PURE.
#pragma once

#include <cstdint>

namespace coordd::model {

// Nodes with a full-duplex port each, on a switch that carries everything, or in equal racks whose
// uplinks carry less than their nodes' ports together. Nodes are numbered rack by rack.
struct Network {
  double alpha_us = 20;      // until the first byte of a message is there
  double gap_us = 1;         // of which the sender can begin no other message
  double gbit = 10;          // of a port, each way
  double reduce_gbyte = 10;  // a second, that a node combines or copies; 0: at once
  int32_t racks = 1;         // equally large
  // How many times as fast as a rack's uplink its ports are together.
  double oversubscription = 1;

  double us_per_byte() const { return 8e-3 / gbit; }
  double uplink_us_per_byte(int32_t nodes) const {
    return us_per_byte() * oversubscription * racks / nodes;
  }
  double reduce_us_per_byte() const { return reduce_gbyte > 0 ? 1e-3 / reduce_gbyte : 0; }
};

}  // namespace coordd::model
