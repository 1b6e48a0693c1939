#include "pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace maclaurin {
namespace {

constexpr size_t LINE = 64;
constexpr size_t LARGE_PAGES_FROM = size_t{4} << 20;  // bytes: two large pages, of which one lies inside for sure
constexpr size_t TEAM_BYTES = size_t{1} << 20;        // more than what OpenMP notes down about a team
constexpr size_t KEPT_BYTES = size_t{16} << 20;       // larger buffers go back when the next one is asked for

void run_alone(int64_t count, Task task, void* context) {
    for (int64_t i = 0; i < count; ++i) task(context, i);
}

// The tasks of a call, dealt out to the threads: a thread takes its own ones first, the same at every call, because its
// cache may still have their data; then it helps the others, so uneven tasks balance.
class Shares {
  public:
    Shares(int64_t count, int threads, Task task, void* context)
        : task_(task), context_(context), count_(count), shares_(std::min(threads, MOST)) {}

    void take() {
        static std::atomic<unsigned> threads{0};
        static thread_local const unsigned number = threads++;
        for (int n = 0; n < shares_; ++n) {
            const int64_t share = (number + n) % shares_;
            const auto next = [&] { return share + shares_ * taken_[share].count.fetch_add(1, std::memory_order_relaxed); };
            for (int64_t i; (i = next()) < count_;) task_(context_, i);
        }
    }

  private:
    static constexpr int MOST = 64;
    struct alignas(LINE) Taken {
        std::atomic<int64_t> count{0};
    };

    Task task_;
    void* context_;
    int64_t count_;
    int shares_;
    Taken taken_[MOST];
};

class Pool {
  public:
    void run(int64_t count, int threads, Task task, void* context) {
        int helpers = static_cast<int>(std::min<int64_t>(threads, count)) - 1;
        if (helpers < 1 || !busy_.try_lock()) {
            run_alone(count, task, context);
            return;
        }
        std::lock_guard<std::mutex> owner(busy_, std::adopt_lock);
        Shares shares(count, helpers + 1, task, context);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            helpers = hire(helpers);
            shares_ = &shares;
            helpers_ = running_ = helpers;
            ++round_;
        }
        wake_.notify_all();
        shares.take();
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return running_ == 0; });
    }

  private:
    // Returns how many of the wanted helpers there are: where the system gives no more threads, fewer do the same work.
    int hire(int wanted) {
        try {
            while (static_cast<int>(workers_.size()) < wanted) {
                const int number = static_cast<int>(workers_.size());
                workers_.emplace_back([this, number, seen = round_] { work(number, seen); });
            }
        } catch (const std::exception&) {
        }
        return std::min(wanted, static_cast<int>(workers_.size()));
    }

    void work(int number, uint64_t seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return round_ != seen; });
            seen = round_;
            if (number >= helpers_) continue;
            Shares& shares = *shares_;
            lock.unlock();
            shares.take();
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::mutex busy_, mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    Shares* shares_ = nullptr;
    int helpers_ = 0, running_ = 0;
    uint64_t round_ = 0;
};

// Never destroyed: its threads may still sleep when the process ends. A forked child has no threads but a copy of their
// bookkeeping, so it gets a pool of its own. Null where there is no memory for one.
Pool* pool() {
    static std::mutex mutex;
    static Pool* current = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(mutex);
    if (current == nullptr || owner != getpid()) {
        current = new (std::nothrow) Pool;
        owner = getpid();
    }
    return current;
}

// Whether the system gives that many more threads, all at once, and a little memory besides.
bool can_start(int count) {
    void* room = mmap(nullptr, TEAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return false;
    std::mutex gate;
    std::vector<std::thread> trial;
    bool started = true;
    {
        const std::lock_guard<std::mutex> closed(gate);  // none ends before all have started
        try {
            trial.reserve(count);
            while (static_cast<int>(trial.size()) < count)
                trial.emplace_back([&gate] { const std::lock_guard<std::mutex> open(gate); });
        } catch (const std::exception&) {
            started = false;
        }
    }
    for (std::thread& thread : trial) thread.join();
    munmap(room, TEAM_BYTES);
    return started;
}

// The threads of torch's own OpenMP, if `use_openmp` has found them. Threads of another pool would have to share the cores
// with them, because they spin for a while after each of torch's operations.
class Team {
  public:
    void set(OpenmpParallel parallel) {
        owner_ = getpid();
        parallel_.store(parallel);
    }

    // Not in a forked child: OpenMP's threads stay behind there, and it would wait for them. The team is as large as torch's,
    // even for fewer tasks: OpenMP ends the threads that a smaller one leaves out, and torch would have to start them again.
    bool run(int64_t count, int threads, Task task, void* context) {
        const OpenmpParallel parallel = parallel_.load();
        if (parallel == nullptr || owner_ != getpid() || !has_threads(threads)) return false;
        Shares shares(count, static_cast<int>(std::min<int64_t>(threads, count)), task, context);
        parallel([](void* shares) { static_cast<Shares*>(shares)->take(); }, &shares, static_cast<unsigned>(threads), 0);
        return true;
    }

  private:
    // OpenMP ends the process where it is refused a thread, so the first team of a size is tried out; every calling thread
    // has a team of its own. With twice the threads, since those of the trial may still count while the team's start.
    static bool has_threads(int wanted) {
        static thread_local int had = 1;
        if (wanted > had && !can_start(2 * (wanted - had))) return false;
        had = wanted;
        return true;
    }

    std::atomic<OpenmpParallel> parallel_{nullptr};
    pid_t owner_ = 0;
};

Team team;

struct Buffer {
    float* data = nullptr;
    size_t bytes = 0;
    ~Buffer() { std::free(data); }
};

}  // namespace

void parallel_for(int64_t count, int threads, Task task, void* context) {
    if (threads < 2 || count < 2) {
        run_alone(count, task, context);
    } else if (!team.run(count, threads, task, context)) {
        if (Pool* own = pool()) own->run(count, threads, task, context);
        else run_alone(count, task, context);
    }
}

void use_openmp(OpenmpParallel parallel) { team.set(parallel); }

float* scratch(size_t count) {
    static thread_local Buffer buffer;
    const size_t bytes = (count * sizeof(float) + LINE - 1) / LINE * LINE;
    if (bytes > buffer.bytes || buffer.bytes > KEPT_BYTES) {
        std::free(buffer.data);
        buffer.data = static_cast<float*>(std::aligned_alloc(LINE, bytes));
        buffer.bytes = buffer.data == nullptr ? 0 : bytes;
    }
    return buffer.data;
}

void prefer_large_pages(void* data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<uintptr_t>(data);
    const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes) / page * page;
    if (end > begin + LARGE_PAGES_FROM) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

}  // namespace maclaurin
