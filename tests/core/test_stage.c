#include "core/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void stage__a_hand_over_is_one_block(void **state)
{
    (void)state;
    double block[16];
    HandOver alone = {.hidden_td = tensor2(NULL, DTYPE_BF16, 3, 5)};
    assert_int_equal(handover_bytes(alone), 30); /* nothing more than the hidden state */
    HandOver at = handover_at(alone, block);
    assert_ptr_equal(at.hidden_td.data, block);
    assert_true(tensor_is_null(at.routed_2e));

    HandOver both = alone;
    both.routed_2e = tensor2(NULL, DTYPE_F64, 2, 4);
    assert_int_equal(handover_bytes(both), 64 + 64);
    at = handover_at(both, block);
    assert_ptr_equal(at.hidden_td.data, block);
    assert_ptr_equal(at.routed_2e.data, block + 8);
    assert_int_equal(tensor_size(at.routed_2e), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stage__a_hand_over_is_one_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
