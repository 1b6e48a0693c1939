// Nothing here throws, and so nothing is used that does, such as std::thread: where there is no memory for what C++ notes
// down about an exception, to throw one ends the process.
#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>

namespace maclaurin {
namespace {

constexpr size_t LINE = 64;
constexpr size_t LARGE_PAGES_FROM = size_t{4} << 20;  // bytes: two large pages, of which one lies inside for sure
constexpr size_t TEAM_BYTES = size_t{1} << 20;        // more than what OpenMP notes down about a team
constexpr size_t KEPT_BYTES = size_t{16} << 20;       // larger buffers go back when the next one is asked for

void run_alone(int64_t count, Task task, void* context) {
    for (int64_t i = 0; i < count; ++i) task(context, i);
}

// What a thread keeps from call to call. Not `thread_local`, for which a thread needs memory when it first comes here.
struct Own {
    float* data;  // its scratch memory
    size_t bytes;
    unsigned number;  // among the threads that have come here
    int team;         // threads of the last team that it has run

    // Null where memory ran out.
    static Own* of_this_thread() {
        static pthread_key_t key;
        static const bool made = pthread_key_create(&key, forget) == 0;
        static std::atomic<unsigned> threads{0};
        if (!made) return nullptr;
        if (void* own = pthread_getspecific(key)) return static_cast<Own*>(own);
        void* own = std::malloc(sizeof(Own));
        if (own == nullptr || pthread_setspecific(key, own) != 0) {
            std::free(own);
            return nullptr;
        }
        return new (own) Own{nullptr, 0, threads++, 1};
    }

  private:
    static void forget(void* own) {
        std::free(static_cast<Own*>(own)->data);
        std::free(own);
    }
};

// The tasks of a call, dealt out to the threads: a thread takes its own ones first, the same at every call, because its
// cache may still have their data; then it helps the others, so uneven tasks balance.
class Shares {
  public:
    Shares(int64_t count, int threads, Task task, void* context)
        : task_(task), context_(context), count_(count), shares_(std::min(threads, MOST)) {}

    void take() {
        const Own* own = Own::of_this_thread();
        const unsigned number = own == nullptr ? 0 : own->number;
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
        pthread_t thread;
        while (hired_ < wanted && pthread_create(&thread, nullptr, start, this) == 0) {
            pthread_detach(thread);
            ++hired_;
        }
        return std::min(wanted, hired_);
    }
    static void* start(void* pool) {
        static_cast<Pool*>(pool)->work();
        return nullptr;
    }

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        const int number = started_++;
        for (uint64_t seen = 0;;) {  // it was hired for a round, which waits for it
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
    Shares* shares_ = nullptr;
    int hired_ = 0, started_ = 0;
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
        void* place = std::malloc(sizeof(Pool));
        current = place == nullptr ? nullptr : new (place) Pool;
        owner = getpid();
    }
    return current;
}

// Whether the system gives that many more threads, all at once, and a little memory besides.
bool can_start(int count) {
    void* room = mmap(nullptr, TEAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* trial = static_cast<pthread_t*>(std::malloc(count * sizeof(pthread_t)));
    int started = 0;
    if (room != MAP_FAILED && trial != nullptr) {
        std::mutex gate;
        const auto wait = [](void* gate) -> void* {
            const std::lock_guard<std::mutex> open(*static_cast<std::mutex*>(gate));
            return nullptr;
        };
        gate.lock();  // none ends before all have started
        while (started < count && pthread_create(trial + started, nullptr, wait, &gate) == 0) ++started;
        gate.unlock();
        for (int i = 0; i < started; ++i) pthread_join(trial[i], nullptr);
    }
    if (room != MAP_FAILED) munmap(room, TEAM_BYTES);
    std::free(trial);
    return started == count;
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
        Own* own = Own::of_this_thread();
        if (own == nullptr || (wanted > own->team && !can_start(2 * (wanted - own->team)))) return false;
        own->team = wanted;
        return true;
    }

    std::atomic<OpenmpParallel> parallel_{nullptr};
    pid_t owner_ = 0;
};

Team team;

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
    Own* own = Own::of_this_thread();
    if (own == nullptr) return nullptr;
    const size_t bytes = (count * sizeof(float) + LINE - 1) / LINE * LINE;
    if (bytes > own->bytes || own->bytes > KEPT_BYTES) {
        std::free(own->data);
        void* data = nullptr;  // std::aligned_alloc is not in every macOS that Python is built for
        own->data = posix_memalign(&data, LINE, bytes) == 0 ? static_cast<float*>(data) : nullptr;
        own->bytes = own->data == nullptr ? 0 : bytes;
    }
    return own->data;
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
