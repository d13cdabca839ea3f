# SPDX-License-Identifier: Apache-2.0
# base
headrace_test(fault_base fault hr_base)
