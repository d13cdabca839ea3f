# load
foreach(name gguf)
  headrace_test(test_load_${name} unit hr_load test_support)
endforeach()
