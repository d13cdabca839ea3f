# load
foreach(name gguf gguf_hostile faults hparams bind)
  headrace_test(test_load_${name} unit hr_load test_support test_load_probe)
endforeach()
# base
foreach(test test_status test_alloc test_arena test_log test_threads)
  headrace_test(${test} unit hr_base)
endforeach()
