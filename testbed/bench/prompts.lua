-- wrk's side of cost.py: chat requests of a given size over a number of distinct prompts, all built before the run.
--   wrk ... -s prompts.lua URL -- BODY_BYTES PROMPTS STREAM MAX_TOKENS     (STREAM: true or false)
-- Prints one line of JSON at the end.

local requests, next_request = {}, 0

local function body(size, number, stream, max_tokens)
  local head = '{"model":"fake-model","stream":' .. stream .. ',"max_tokens":' .. max_tokens ..
    ',"messages":[{"role":"user","content":"' .. string.format("%08d ", number)
  local tail = '"}]}'
  local filler = string.rep("the quick brown fox jumps over the lazy dog ", math.ceil(size / 44))
  return head .. filler:sub(1, size - #head - #tail) .. tail
end

function init(args)
  local size, prompts = tonumber(args[1]), tonumber(args[2])
  local headers = { ["content-type"] = "application/json", ["authorization"] = "Bearer none" }
  for number = 1, prompts do
    requests[number] = wrk.format("POST", "/v1/chat/completions", headers, body(size, number, args[3], args[4]))
  end
end

function request()
  next_request = next_request % #requests + 1
  return requests[next_request]
end

function done(summary, latency)
  local e = summary.errors
  print(string.format(
    '{"requests":%d,"seconds":%.3f,"failed":%d,"p50_us":%d,"p99_us":%d}', summary.requests, summary.duration / 1e6,
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50), latency:percentile(99)))
end
