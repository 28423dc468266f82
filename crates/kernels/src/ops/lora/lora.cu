KERNEL(lora_scale, 256, float* x, float scale, u64 count) {
    u64 i = thread_of_grid();
    if (i < count) x[i] = x[i] * scale;
}
