// Blocks of a thread's scratch memory, handed out one behind the other.
#pragma once
#include "pool.h"

namespace maclaurin {

class Arena {
  public:
    explicit Arena(float* begin) : begin_(begin) {}
    // `count` floats on a cache line's boundary; null while sizes are only being summed.
    float* take(size_t count) {
        float* block = begin_ == nullptr ? nullptr : begin_ + used_;
        used_ += (count + 15) / 16 * 16;
        return block;
    }
    size_t used() const { return used_; }

  private:
    float* begin_;
    size_t used_ = 0;
};

// use(buffers) with buffers of the kind Buffers(arena, sizes), a struct that takes its blocks from the arena in its
// constructor: once to learn the size, once to get the memory. False where memory ran out.
template <class Buffers, class Sizes, class Use>
bool with_buffers(const Sizes& sizes, const Use& use) {
    Arena measure(nullptr);
    Buffers(measure, sizes);
    float* begin = scratch(measure.used());
    if (begin == nullptr) return false;
    Arena arena(begin);
    const Buffers buffers(arena, sizes);
    use(buffers);
    return true;
}

}  // namespace maclaurin
