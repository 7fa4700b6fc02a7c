/* SPDX-License-Identifier: BSD-3-Clause */
/* The log function of the tools: Rust has no functions of variable arguments to give away. */

#include <librpma.h>
#include <stdarg.h>
#include <stdio.h>

/* In mod.rs; line is a C string that lives until it returns. */
void rpma_tools_log_line(int level, const char *line);

rpma_log_function rpma_tools_log;

void rpma_tools_log(enum rpma_log_level level, const char *file_name, int line_no,
                    const char *function_name, const char *message_format, ...)
{
    (void)file_name;
    (void)line_no;
    (void)function_name;
    char line[1024];
    va_list arguments;
    va_start(arguments, message_format);
    int length = vsnprintf(line, sizeof(line), message_format, arguments);
    va_end(arguments);
    if (length >= 0)
        rpma_tools_log_line((int)level, line);
}
