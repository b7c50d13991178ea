// The part of one plane that a task computes.
#pragma once

#include "geometry/window.hpp"

namespace poolgrad {
namespace {

// A box of outputs: [lo, hi) along depth, height and width.
struct Tile {
  i64 lo[3], hi[3];
};

// Inputs [lo, hi) along the outermost pooled axis that has more than one input; all inputs along
// the other axes. So the tile is contiguous in a dense plane.
struct InputTile {
  i64 lo[3], hi[3];
};

}  // namespace
}  // namespace poolgrad
