/* What a program may rely on beyond names and values. Also compiled as C++. */
#include <librpma.h>
#include <librpma.h>

/* A function type, not a pointer to one: a program declares its own function with it. */
rpma_log_function own_function;

void own_function(enum rpma_log_level level, const char *file_name, const int line_no,
		  const char *function_name, const char *message_format, ...)
{
	(void)level, (void)file_name, (void)line_no, (void)function_name, (void)message_format;
}

/* Macros expand to whole expressions. */
int values(void);
int values(void)
{
	struct rpma_conn_private_data data = {NULL, 0};
	return rpma_log_set_function(own_function) + 2 - RPMA_E_INVAL + data.len +
	       2 * RPMA_MR_USAGE_RECV + 2 * RPMA_F_COMPLETION_ALWAYS +
	       (RPMA_LOG_USE_DEFAULT_FUNCTION == data.ptr);
}
