// The emulator's shared memory: every access is checked to be inside its array, aligned, and ordered after the accesses
// of other threads.
namespace emulator {

// Whether a barrier orders the current thread after an earlier access.
static bool ordered(const Access& before) {
    unsigned warp = now.current / WARP;
    return before.block_epoch != now.epoch || (before.warp == warp && before.warp_epoch != now.warps[warp].epoch);
}

// An access by the current thread, now.
static Access here() {
    unsigned warp = now.current / WARP;
    return {(uint16_t)now.current, (uint16_t)warp, now.epoch, now.warps[warp].epoch};
}

// Records an access to shared memory; fails if it is not ordered after earlier ones of other threads.
static void touch(unsigned offset, unsigned bytes, bool write, unsigned site) {
    for (unsigned i = offset / GRANULE; i < (offset + bytes) / GRANULE; i++) {
        Cell& cell = now.cells[i];
        bool by_other = cell.write.thread != Access::NOBODY && cell.write.thread != now.current;
        if (by_other && !ordered(cell.write))
            fail("%s of shared memory declared in line %u is not ordered after thread %u's write",
                 write ? "a write" : "a read", site, cell.write.thread);
        bool read_by_other = cell.read.thread != Access::NOBODY && cell.read.thread != now.current;
        if (write && read_by_other && !ordered(cell.read))
            fail("a write of shared memory declared in line %u is not ordered after another thread's read", site);
        Access me = here();
        if (write) {
            cell.write = me;
            continue;
        }
        if (cell.read.thread != Access::NOBODY && cell.read.block_epoch == now.epoch && cell.read.thread != me.thread) {
            if (cell.read.warp != me.warp) me.warp = Access::SEVERAL;
            me.thread = Access::SEVERAL;
        }
        cell.read = me;
    }
}

// A shared array of a kernel, as its elements and pointers know it: its offset in the block's shared memory, its number
// of elements, and the source line of its declaration.
struct Place {
    unsigned offset, count, site;
};

// Fails if `wide` elements from element `i` on are not all inside the array.
static void inside(const Place& place, int64_t i, unsigned wide) {
    if (i < 0 || i + wide > place.count)
        fail("element %lld of shared memory declared in line %u, which has %u", (long long)i + wide - 1, place.site, place.count);
}

template <class T>
struct Pointer;

// An element of a shared array.
template <class T>
struct Element {
    static_assert(sizeof(T) % GRANULE == 0, "accesses are recorded in units of GRANULE bytes");
    Place of;
    int64_t index;
    T* reach(bool write) const {
        inside(of, index, 1);
        unsigned at = of.offset + (unsigned)index * sizeof(T);
        touch(at, sizeof(T), write, of.site);
        return (T*)(now.shared + at);
    }
    operator T() const { return *reach(false); }
    T operator=(T x) const { return *reach(true) = x; }
    T operator=(const Element& x) const { return *this = (T)x; }
    T operator+=(T x) const { return *this = (T) * this + x; }
    Pointer<T> operator&() const { return {of, index}; }
};

// The address of an element of a shared array. A kernel holds it as `auto`, since on a GPU it is a plain pointer.
template <class T>
struct Pointer {
    Place of;
    int64_t index;
    Element<T> operator[](int64_t i) const { return {of, index + i}; }
    Element<T> operator*() const { return {of, index}; }
    Pointer operator+(int64_t i) const { return {of, index + i}; }
    Pointer operator-(int64_t i) const { return {of, index - i}; }
    Pointer& operator+=(int64_t i) { return index += i, *this; }
    // The first byte of `wide` elements that one instruction accesses.
    T* reach(unsigned wide, bool write) const {
        inside(of, index, wide);
        unsigned at = of.offset + (unsigned)index * sizeof(T), bytes = wide * sizeof(T);
        if (at % bytes) fail("element %lld of shared memory declared in line %u is not aligned to %u bytes", (long long)index, of.site, bytes);
        touch(at, bytes, write, of.site);
        return (T*)(now.shared + at);
    }
};

// The offset of a shared array in the block's shared memory. It is assigned anew in each launch.
struct Slot {
    unsigned offset, launch;
};

// A shared array of a kernel.
template <class T>
struct Array {
    Place place;
    Array(Slot& slot, unsigned count, unsigned site) : place{0, count, site} {
        if (slot.launch != now.launch) {
            slot.launch = now.launch;
            slot.offset = (now.shared_used + 127) / 128 * 128;
            now.shared_used = slot.offset + count * sizeof(T);
            if (now.shared_used > SHARED_BYTES) fail("%u bytes of shared memory, there are %u", now.shared_used, SHARED_BYTES);
        }
        place.offset = slot.offset;
    }
    Element<T> operator[](int64_t i) const { return {place, i}; }
};

// The address of `bytes` bytes of global memory that one instruction accesses.
template <class T>
static T* reach(T* at, unsigned bytes) {
    if ((uintptr_t)at % bytes) fail("address %p of global memory is not aligned to %u bytes", (const void*)at, bytes);
    return at;
}

}  // namespace emulator

#define SHARED(type, name, count)         \
    static emulator::Slot slot_of_##name; \
    emulator::Array<type> name(slot_of_##name, count, __LINE__)
