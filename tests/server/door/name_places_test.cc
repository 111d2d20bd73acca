#include "server/door/name_places.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coordd {
namespace {

using Places = std::vector<NamePlaces::Place>;

// One more of `name`, kept in `kept`.
bool Take(NamePlaces& places, const std::string& name, Places& kept) {
  NamePlaces::Place place;
  size_t of_name = 0;
  if (!places.Take(name, &place, &of_name)) return false;
  kept.push_back(std::move(place));
  return true;
}

TEST(NamePlaces, OneNameLeavesAQuarterForOthers) {
  NamePlaces places(400);
  Places of_one, of_others;
  while (Take(places, "worker/one", of_one)) continue;
  EXPECT_EQ(of_one.size(), 300u);
  for (const char* name : {"worker/two", "worker/three"})
    EXPECT_TRUE(Take(places, name, of_others)) << name;
}

TEST(NamePlaces, SeveralWhoWantAllLeaveSomeTogether) {
  NamePlaces places(700);
  Places kept;
  while (static_cast<int>(Take(places, "a", kept)) + static_cast<int>(Take(places, "b", kept)) > 0)
    continue;
  EXPECT_EQ(kept.size(), 600u);
  EXPECT_TRUE(Take(places, "c", kept));
}

TEST(NamePlaces, TheFirstOnesGetInHoweverLittleIsLeft) {
  NamePlaces places(1);
  Places kept;
  for (size_t i = 0; i < NamePlaces::kAlways; ++i) EXPECT_TRUE(Take(places, "a", kept));
  EXPECT_FALSE(Take(places, "a", kept));
  EXPECT_TRUE(Take(places, "b", kept));
}

TEST(NamePlaces, WhatIsLeftIsFreeAgain) {
  NamePlaces places(40);
  Places kept;
  while (Take(places, "a", kept)) continue;
  kept.pop_back();
  EXPECT_TRUE(Take(places, "a", kept));
  EXPECT_FALSE(Take(places, "a", kept));
}

}  // namespace
}  // namespace coordd
